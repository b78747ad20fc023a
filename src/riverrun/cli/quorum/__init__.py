"""`riverrun quorum`."""
