/* Between the preloaded part and the plugin. */
#ifndef SYSTX_SHIM_H
#define SYSTX_SHIM_H

/* What Dovecot locks from here to the end of the region is of one transaction, which begins at the
 * first lock.  Regions nest. */
void systx_mail_together(void);
void systx_mail_apart(void);

#endif
