"""Pages of HTML: their parts, and the page of a run."""
