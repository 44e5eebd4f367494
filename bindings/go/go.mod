module systx

go 1.19
