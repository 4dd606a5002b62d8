"""Any image to one of the data; f(f(x)) = f(x) by architecture."""
