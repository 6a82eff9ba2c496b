"""What trainers take as their own: small classes on the client, without a trainer among their imports."""
