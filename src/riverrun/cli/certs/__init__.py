"""`riverrun certs`: a certificate authority, and certificates for nodes and clients."""
