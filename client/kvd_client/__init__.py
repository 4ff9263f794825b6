"""Client library of kvd, for the processes of an inference engine."""
