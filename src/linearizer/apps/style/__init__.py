"""Photos to pictures; a style is an operator."""
