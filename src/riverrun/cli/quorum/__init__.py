"""``riverrun quorum``: the voters of the metadata quorum."""
