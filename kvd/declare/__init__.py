"""What a model needs stored: layers, parts and lifetimes, from a configuration or as declared."""
