/* What bindgen reads: the public UCP API, and the configuration types of UCS that a plugin fills in. */
#include <ucp/api/ucp.h>
#include <ucs/config/parser.h>
