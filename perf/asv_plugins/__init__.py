"""The modules that asv loads into its own process (`plugins` in asv.conf.json): only they import asv at the top."""
