"""What clients speak to: HTTP, gRPC and a page; who is let in; how requests share. docs/architecture.md has its map."""
