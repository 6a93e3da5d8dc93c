"""A larger checkpoint trained on English documentation of Debian packages, for measuring quantisation."""
