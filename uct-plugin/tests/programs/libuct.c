/* Plays the part of libuct: opens a memory domain of a component, as UCX does. A component starts
 * with the function that opens its memory domains. */

typedef signed char status_t;

typedef struct {
    status_t (*md_open)(const char *name, const void *config, void **md_p);
} component_t;

status_t uct_md_open(const component_t *component, const char *name, const void *config,
                     void **md_p)
{
    return component->md_open(name, config, md_p);
}
