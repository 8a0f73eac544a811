"""What requests carry: pictures, ink, text, records."""
