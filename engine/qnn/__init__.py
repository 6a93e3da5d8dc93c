"""Reading QNN context binaries without a device."""
