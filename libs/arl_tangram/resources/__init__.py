"""Operations of the SDK by resource: reward services, endpoints, queues, files, output."""
