"""What clients and nodes were told, and whether it stays true."""
