/* What bindgen reads: the verbs and the direct verbs of mlx5. */
#include <infiniband/verbs.h>
#include <infiniband/mlx5dv.h>
