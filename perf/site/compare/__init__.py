"""Any two measured commits beside each other: what each measured, a file of its own, and the page that fetches two."""
