"""`hexserve service`: the server started by the system, as a systemd user unit or a scheduled task of Windows."""
