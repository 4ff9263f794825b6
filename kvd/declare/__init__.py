"""What a model needs stored: layers, parts and lifetimes."""
