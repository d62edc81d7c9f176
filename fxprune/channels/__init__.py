"""Who a channel is: identities, and the values that passes hand each other."""
