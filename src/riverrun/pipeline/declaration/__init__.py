"""What a pipeline file declares: parsing, checks, templates."""
