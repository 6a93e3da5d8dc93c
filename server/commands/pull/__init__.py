"""`hexserve pull`: a ready bundle fetched with progress bars."""
