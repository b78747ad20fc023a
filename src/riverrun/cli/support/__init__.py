"""Shared by all commands: options, output, sessions, interrupts."""
