"""`riverrun topics`."""
