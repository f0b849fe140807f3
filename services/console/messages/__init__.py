"""Bodies of requests and answers; the OpenAPI document is made from them."""
