"""Consumer groups: members, offsets and lag."""
