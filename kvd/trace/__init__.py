"""The operation log as traces: recorded, shown, replayed without a device, and compared."""
