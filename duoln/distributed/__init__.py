"""Several processes that train one model, over the engines of the array libraries."""
