"""How curved the loss is around a trained network: Hessian products, spectra, sharpness."""
