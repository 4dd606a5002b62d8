"""Images to class scores or attributes."""
