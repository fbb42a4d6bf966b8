"""One training loop: steps, optimisers, checkpoints, processes that train what one trains."""
