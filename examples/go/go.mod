module transfer

go 1.19

require systx v0.0.0

replace systx => ../../bindings/go
