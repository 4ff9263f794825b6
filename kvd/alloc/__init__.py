"""The bands of one arena, their pages and the requests that hold them."""
