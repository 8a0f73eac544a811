"""Who is let in, and with how much: keys, rates, memory, places, forms, large work, and bodies that end workers."""
