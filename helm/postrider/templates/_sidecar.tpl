{{/*
For a chart that depends on this one (workload.kind: None) and has Postrider beside its own containers. All take this
chart's own context, as in

  initContainers:
    - {{ include "postrider.sidecar.container" .Subcharts.postrider | indent 10 | trim }}
  volumes:
    {{- include "postrider.sidecar.volumes" .Subcharts.postrider | nindent 8 }}

An entry of initContainers that is always restarted: Kubernetes starts it before the application, and stops it after,
so that what the application writes at its very end is still relayed.
*/}}
{{- define "postrider.sidecar.container" -}}
restartPolicy: Always
{{ include "postrider.container.run" (dict "root" . "static" false) }}
securityContext:
  {{- /* The pod's is the application's: what matters of ours stands here too. */}}
  {{- $pod := omit .Values.podSecurityContext "fsGroup" "fsGroupChangePolicy" "supplementalGroups" "supplementalGroupsPolicy" "sysctls" }}
  {{- mergeOverwrite $pod .Values.securityContext | toYaml | nindent 2 }}
{{- end }}

{{/* Readable by all in the pod (0444): whose group they have is the application's to say (fsGroup). */}}
{{- define "postrider.sidecar.volumes" -}}
{{- include "postrider.container.volumes" (dict "root" . "static" false "mode" 292) -}}
{{- end }}

{{/* For the pod's annotations: a changed configuration restarts it. */}}
{{- define "postrider.sidecar.annotations" -}}
checksum/postrider-config: {{ include "postrider.checksum" . }}
{{- end }}

{{/* Seconds that a stop of Postrider may take; the pod's grace period is that and the application's own. */}}
{{- define "postrider.sidecar.stopSeconds" -}}
{{ include "postrider.terminationGracePeriodSeconds" . }}
{{- end }}
