"""What asv loads into its own process (`plugins` in asv.conf.json); the only modules here that import asv on top."""
