"""Delta debugging over any items: generators over rounds of proposals, and the one driver that runs them."""
