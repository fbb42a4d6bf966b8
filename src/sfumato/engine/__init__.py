"""One training loop and one prediction loop on Lightning Fabric."""
