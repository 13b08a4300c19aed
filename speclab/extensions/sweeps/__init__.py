"""Changes one setting and keeps the rest still: acceptance, output length, context, or how unlike the draft is."""
