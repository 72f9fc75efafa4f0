/* Does what every program on UCP does first. */

#include <stdio.h>
#include <ucp/api/ucp.h>

int main(void)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = UCP_FEATURE_RMA
    };
    ucp_worker_params_t worker_params = {0};
    ucp_context_h context;
    ucp_config_t *config;
    ucp_worker_h worker;

    if ((ucp_config_read(NULL, NULL, &config) != UCS_OK) ||
        (ucp_init(&params, config, &context) != UCS_OK)) {
        return 1;
    }
    ucp_config_release(config);
    if (ucp_worker_create(context, &worker_params, &worker) != UCS_OK) {
        return 1;
    }
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    printf("done\n");
    return 0;
}
