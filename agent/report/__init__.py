"""`m3agent report`: sessions as one HTML page that needs nothing else, made from their logs."""
