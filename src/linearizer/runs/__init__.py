"""Run folders: what is written, opened, listed, exported and shared."""
