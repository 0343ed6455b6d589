"""What a run tells: typed events, meters, sinks and the report read back from them. No torch."""
