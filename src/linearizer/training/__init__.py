"""The only optimiser loop, and what it needs: settings, draws, optimizers, processes, files."""
