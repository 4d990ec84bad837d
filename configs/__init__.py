"""Settings and figures the program ships with; a package so that an installation finds them."""
