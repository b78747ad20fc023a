"""The words everything else is made of: ids, errors, settings. Imports nothing of riverrun."""
