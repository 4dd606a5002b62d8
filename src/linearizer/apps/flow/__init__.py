"""Noise to images in one step, and back by the pseudo-inverse."""
