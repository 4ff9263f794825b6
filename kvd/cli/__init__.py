"""The kvd command, one module per subcommand."""
